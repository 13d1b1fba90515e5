"""A process that may do little: where files that nobody vouches for are read.

`running` starts one and waits for it; inside, `limits` bounds memory, time and files always, `landlock` and `seccomp`
take away other files, the network and new processes where the kernel has them. Imports `tt_core.errors`; may be
imported by all above it.
"""
