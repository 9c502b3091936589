"""The engine of an exchange: stages of a bucket beside the backward pass, in threads."""
