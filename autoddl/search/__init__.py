"""Arrays only: a `Problem` of tables to a choice and a lower bound."""
