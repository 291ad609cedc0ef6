"""The nouns that all layers share: what a job asks for, which states it has, what a node is."""
