"""What a judge is asked, and how its reply becomes a score."""
