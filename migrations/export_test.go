package migrations

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// UpWith is Up with other files. It makes no jobs and no partitions.
var UpWith = up

// LockID is the advisory lock of Up.
const LockID int64 = lockID

// Files are the embedded files.
var Files = files

// UnknownGrants lists the objects, columns and privileges of grants that do not exist.
func UnknownGrants(ctx context.Context, conn *pgx.Conn) (unknown []string) {
	objects, err := objectsOf(ctx, conn)
	if err != nil {
		return []string{err.Error()}
	}
	for _, g := range parseGrants() {
		o, exists := objects[g.object]
		if !exists {
			unknown = append(unknown, g.object)
		}
		for _, text := range g.privileges[1:] {
			for _, part := range privilegePattern.FindAllStringSubmatch(text, -1) {
				for column := range strings.SplitSeq(part[3], ",") {
					if column != "" && !slices.Contains(o.columns, column) {
						unknown = append(unknown, g.object+"."+column)
					}
				}
			}
			if strings.Trim(privilegePattern.ReplaceAllString(text, ""), "-") != "" {
				unknown = append(unknown, g.object+": "+text)
			}
		}
	}
	return unknown
}
