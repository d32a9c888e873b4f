"""CoEval: votes and benchmarks without people, by an ensemble of teachers, students and judges."""
