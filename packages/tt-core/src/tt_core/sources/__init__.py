"""Where models come from: one module per format, each imported only when such a model is given."""
