"""What people say of answers, beside what judges say: how far they agree, and scores put right by it."""
