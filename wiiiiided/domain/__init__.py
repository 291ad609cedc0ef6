"""The nouns everybody shares: what a job asks for, which states it has, what a node is."""
