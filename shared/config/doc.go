// Package config reads settings from environment variables, checks them, finds misspelt
// ones, and lists them as a table.
//
// Settings are the fields of structs. The tag `envconfig` names the variable, `default` and
// `desc` are shown in the table. `secret:"true"` is for strings: the value is kept out of
// messages, and may be in a file that the variable with the suffix _FILE names. `readby`
// names the functions and commands that read the setting, if not all do. A field that is no
// setting has the tag `ignored:"true"`. A struct may have a method Validate() []task.Field, which
// checks what types cannot express and returns the variables with bad values.
package config
