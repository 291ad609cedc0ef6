"""Looking at what runs, without being felt: samples, courses, records, the picture."""
