"""Load generators side by side: the server that knows the truth, the clients, and what they got wrong."""
