package callers

var Hash = hash
