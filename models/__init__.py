"""One paper, one file: the models, and the few pieces that several of them share."""
