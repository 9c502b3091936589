"""One command to a whole job: mpirun over the hosts, the evaluator beside it, and what they say."""
