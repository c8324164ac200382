"""What keeps the tree in order; no part of the product."""
