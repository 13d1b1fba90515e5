"""The trivial piece of each role: enough to tune with nothing else installed, and to compare against."""
