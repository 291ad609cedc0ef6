"""Looking at what runs, without being felt: samples, attempts, records, snapshots."""
