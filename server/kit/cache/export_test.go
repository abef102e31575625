package cache

const NodeBytes = nodeBytes
