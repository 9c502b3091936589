"""Streams of prefix codes that say nowhere but at their beginning where a code begins.

A stream is cut into chunks. Where the first code of a chunk begins depends on the one before it,
but there are only as many places as the longest code has bits: so each chunk is read from all of
them, at once, which gives the place in the next chunk where each ends up and how many codes there
were. Maps of places to places can be composed in any grouping, so that a scan over the chunks tells
where each really begins and how many codes are before it; then all are read once more, and written.
Nothing is guessed, and nothing is tried until it fits.
"""
