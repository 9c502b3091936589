"""Parameters that FSDP2 has sharded."""
