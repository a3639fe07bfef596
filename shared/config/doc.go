// Package config reads settings from environment variables, checks them, finds misspelt
// ones, and lists them as a table.
//
// A setting is a field of a struct, with these tags:
//
//	envconfig       the name of the variable
//	default, desc   the default, and the description in the table
//	secret:"true"   a string that no message shows. It may be in a file: then the variable
//	                with the suffix _FILE, such as NATS_PASSWORD_FILE, has the file's path
//	readby          the functions and commands that read the setting; absent = all
//	ignored:"true"  the field is not a setting
//
// A struct may have a method Validate() []task.Field, which Load calls. Validate returns the
// variables with values that their types accept, but the service does not.
package config
