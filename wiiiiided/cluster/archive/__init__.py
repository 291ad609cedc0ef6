"""How a working directory travels: packed by the client, unpacked as the jobs' user."""
