"""How fast the endpoint answers, beside what a user would write without this project."""
