"""The daemon: the I/O round `control`. It never imports torch or numpy."""
