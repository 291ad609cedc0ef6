"""The one port of a machine: it accepts connections and hands them to the right process."""
