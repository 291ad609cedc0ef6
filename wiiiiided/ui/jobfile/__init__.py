"""A job file, from its text to a JobSpec or to a list of everything that is wrong with it."""
