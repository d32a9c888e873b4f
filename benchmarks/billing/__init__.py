"""What the router books of many mixed calls, held against what providers of every protocol bill."""
