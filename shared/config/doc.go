// Package config reads settings from environment variables, checks them, finds misspelt
// ones, and lists them as a table.
//
// A setting is a field of a struct, with these tags:
//
//	envconfig       the name of the variable
//	default, desc   the default, and the description in the table
//	secret:"true"   a string that is kept out of messages; it may be in a file that the
//	                variable with the suffix _FILE names
//	readby          the functions and commands that read the setting; absent = all
//	ignored:"true"  the field is not a setting
//
// A struct may have a method Validate() []task.Field, which checks what types cannot express
// and returns the variables with bad values.
package config
