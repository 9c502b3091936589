"""Parallel decoding of streams of prefix codes, which mark no start of a code but the first.

A stream is cut into chunks. The start of the first code in a chunk depends on the chunk before it,
but there are only as many possible starts as the longest code has bits. So each chunk is decoded
from all of them in parallel; this gives for each start the start in the next chunk, and the number
of codes. Such maps of starts can be composed in any grouping, so a scan over the chunks computes
the true start of each chunk and the number of codes before it. Then all chunks are decoded once
more, and written. No chunk is decoded from a guess, or repeatedly until it fits.
"""
