package apierror

var (
	Codes = codesOf
	Named = named
)
