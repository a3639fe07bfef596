package migrations

// UpFrom is Up with other files.
var UpFrom = up

// Files are the embedded files.
var Files = files
