"""Statement features without TVM: loop nests of many programs at once."""
