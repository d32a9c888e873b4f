"""Models that need no key and no network: teachers, students and judges of known skill."""
