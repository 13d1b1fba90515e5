"""TVM: targets, lowering to tasks, building and running programs, running a deployed library.

`target`, `peak` and `quiet` are about the machine, `lean` about importing TVM, `lower` and its passes (`fold`,
`elementary`, `indices`) about the graph, `primfunc` and `arrays` about one operator, `backend` about candidates in a
worker, `runtime` about a written file. Imports only `tt_core.errors`; may be imported by every other room but `events`.
"""
