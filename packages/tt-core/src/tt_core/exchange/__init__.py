"""Formats of exchange that need TVM: databases of MetaSchedule.

Whatever TVM parses of a stranger's file it parses in a process of its own (`worker`), so that a file that crashes the
parser is one line. May be imported by everything above `compiler`.
"""
