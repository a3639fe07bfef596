package task

// Limits of the API.
const (
	MaxContent      = 200  // characters of a message, and of a template
	MaxEncoded      = 4000 // characters of all URL-encoded parameters, or of one parameter in JSON
	MaxTemplateName = 100  // characters
	MaxSource       = 50   // characters
	MaxErrorCode    = 50   // characters
	MaxResult       = 500  // characters of a result
	MaxRetriesCap   = 10   // highest max_retries
	DefaultQueue    = "default"
	DefaultPriority = 5 // priority 0 is claimed first
	LowestPriority  = 9 // claimed last
)
