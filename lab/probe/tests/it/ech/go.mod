module sealane/probe/ech

go 1.24
