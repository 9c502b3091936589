"""The supervisor: it runs on the master, and the cluster comes through the night by itself.

It starts the job, replaces workers that go, starts the job again from its newest checkpoint, and
ends the cluster when there is nothing left to do for it, or money or time run out.
"""
