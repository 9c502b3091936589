"""The launcher of a job: mpirun over the hosts, the evaluator beside it, and their output."""
