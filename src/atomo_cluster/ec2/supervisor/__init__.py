"""The supervisor: a process on the master that keeps a job running unattended.

It starts the job, replaces lost workers, and restarts the job from its newest checkpoint. It ends
the cluster when the job is done, or when money or time run out.
"""
