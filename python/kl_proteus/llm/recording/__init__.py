"""Episodes on disk: columns, strict JSON Lines, shards with one writer each."""
