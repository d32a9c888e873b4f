"""Items from elsewhere: benchmarks as they are downloaded, and any file of prompts with reference answers."""
