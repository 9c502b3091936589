"""Jobs on hosts: host files, mpirun, SLURM, ssh, output streams, probes."""
