"""Money: prices, the ledger of hosts, and costs."""
