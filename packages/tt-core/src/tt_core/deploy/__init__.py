"""Models out: the winners race, the library is compiled, verified and written.

`shipping` chooses and verifies, `library` compiles and writes the file, `constants` stores weights in the form that
tuned programs read. Imports `prepared`, `models`, `compiler` and `errors`; may be imported by the runner.
"""
