"""Plans of codecs and messages: proposals, trials, measurements."""
