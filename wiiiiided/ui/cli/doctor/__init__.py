"""The checks of `wiiiiide doctor`: facts are gathered first, then judged without I/O."""
