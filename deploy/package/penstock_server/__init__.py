"""The programs of Penstock, penstockd and penstock, for the LibTorch of the torch that is installed beside them."""
