"""Commands that are reached through `p2l NAME` alone."""
