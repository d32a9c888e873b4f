"""Questions that a provider answers within a day, for less: jobs that outlive the process that sent them."""
